"""The commands: flags in, exit code out, one sentence for whatever is wrong."""
