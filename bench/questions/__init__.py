"""The questions, by letter."""

from bench.question import Question
from bench.questions import dicts, epochs, float32, images, new_arrays, photos, python, recipe, tiny, uint8

QUESTIONS: dict[str, Question] = {
    question.key: question
    for question in (
        *new_arrays.QUESTIONS,
        recipe.QUESTION,
        python.QUESTION,
        *(module.QUESTION for module in (photos, uint8, float32, tiny, dicts)),
        *images.QUESTIONS,
        epochs.QUESTION,
    )
}
