"""Settings in layers: each effective value has an origin, and all errors are reported at once."""

from tidegate.config.keys import KEYS, duration_text
from tidegate.config.layers import FILE_NAME, load_settings
from tidegate.config.settings import Settings, ShownSetting, SparkOptions

__all__ = ["FILE_NAME", "KEYS", "Settings", "ShownSetting", "SparkOptions", "duration_text", "load_settings"]
