"""Commands for lists: stored steps (`cache`) and families of models (`families`)."""
