"""Whole systems of the survey, one file each: the model and how it is trained, evaluated and asked. Found by being here."""
