"""What runs predict for the single samples of the test split, as the page of a comparison shows it."""
