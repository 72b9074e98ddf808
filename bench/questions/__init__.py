"""The questions, by letter."""

from bench.question import Question
from bench.questions import dicts, float32, photos, tiny, uint8

QUESTIONS: dict[str, Question] = {
    module.QUESTION.key: module.QUESTION for module in (photos, uint8, float32, tiny, dicts)
}
