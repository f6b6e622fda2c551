"""What a run leaves behind: checkpoints, metrics, its folder."""
