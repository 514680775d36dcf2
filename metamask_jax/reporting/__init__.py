"""Drawing what was measured: plots, tables and the report of a run. Nothing is measured here."""
