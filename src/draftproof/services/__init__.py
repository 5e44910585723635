"""The services under test: engines, how their processes start and are checked, what is scraped from them."""
