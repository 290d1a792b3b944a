"""What a server that is curious can extract from what it is sent (paper, "Adversarial Attack Scenarios"; Table 10)."""
