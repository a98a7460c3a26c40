"""What a tune found, for people and for other programs: result folders, tables, plots, HTML, explanations."""
