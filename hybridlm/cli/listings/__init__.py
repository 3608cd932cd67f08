"""Commands that list what this machine has: stored steps (`cache`) and families of models (`families`)."""
