"""One view for each kind of inspection: from a loaded run and options to an `InspectionResult`."""
