"""What is asked of a model and how the answer is judged. One file each."""
