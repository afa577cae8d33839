"""One model beside its exact optimum, on one page."""
