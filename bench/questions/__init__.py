"""The questions, by letter."""

from bench.question import Question
from bench.questions import dicts, epochs, float32, images, photos, tiny, uint8

QUESTIONS: dict[str, Question] = {
    question.key: question
    for question in (
        *(module.QUESTION for module in (photos, uint8, float32, tiny, dicts)),
        *images.QUESTIONS,
        epochs.QUESTION,
    )
}
