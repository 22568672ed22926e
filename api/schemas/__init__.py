"""Wire forms, pydantic models by resource. Nothing outside this package knows pydantic's wire side."""
