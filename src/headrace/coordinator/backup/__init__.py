"""The copy of a job beside its host: files copied in the background, who drives, the way back."""
