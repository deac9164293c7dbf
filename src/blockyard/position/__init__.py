"""Position schemes: absolute, rotary and bias. One mechanism per file."""
