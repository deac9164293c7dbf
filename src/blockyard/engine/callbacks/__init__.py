"""What happens beside the steps: one file each."""
