"""Pure JAX, for anybody's model: the mask, the losses, the meta-gradient, and the learner that puts them together."""
