"""What every room uses: errors, what the library says, environment variables."""
