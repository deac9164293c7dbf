"""Where tokens lie: absolute, rotary and bias schemes. One file each."""
