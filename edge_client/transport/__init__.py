"""The transport seam: one small interface (`base.py`), MQTT behind it (`mqtt.py`)."""
