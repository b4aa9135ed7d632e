"""Ray: fit, calibrate and score where embeddings or images outgrow one machine (`pip install "gem-ood[ray]"`)."""
