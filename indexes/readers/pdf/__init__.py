"""PDFs: letters to lines, headings, and blocks with their pages."""
