"""Training a drafter on text that its target wrote: prompts, text, features, losses, trainer, export."""
