"""Networks of learned drafters: the seam a drafter needs, and the reference in torch's operators."""
