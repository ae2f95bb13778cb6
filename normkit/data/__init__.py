"""Data that normkit check runs on; README.md beside this file tells its origin."""
