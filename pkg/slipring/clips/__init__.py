"""Clips of video files: exact frames by number or by time, written straight into the batch."""

from slipring._public import publish
from slipring.clips._audio import Audio, AudioFormat
from slipring.clips._lerobot import LeRobot
from slipring.clips._samplers import (
    RandomClips,
    RegularClips,
    clips_at_random_indices,
    clips_at_random_timestamps,
    clips_at_regular_indices,
    clips_at_regular_timestamps,
)
from slipring.clips._video import Frames, Video
from slipring.clips._videos import Clip, ClipWithAudio, Videos

__all__ = [
    "Audio",
    "AudioFormat",
    "Clip",
    "ClipWithAudio",
    "Frames",
    "LeRobot",
    "RandomClips",
    "RegularClips",
    "Video",
    "Videos",
    "clips_at_random_indices",
    "clips_at_random_timestamps",
    "clips_at_regular_indices",
    "clips_at_regular_timestamps",
]

publish(__name__)
