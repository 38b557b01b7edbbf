"""Settings in layers, each effective value with its origin; wrong ones are refused all at once."""

from tidegate.config.keys import KEYS, duration_text
from tidegate.config.layers import FILE_NAME, load_settings
from tidegate.config.settings import Settings, ShownSetting, SparkOptions

__all__ = ["FILE_NAME", "KEYS", "Settings", "ShownSetting", "SparkOptions", "duration_text", "load_settings"]
