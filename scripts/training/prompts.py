"""The prompts whose answers train the drafters: the project's own templates, filled in by seed.

They are made to sound like open conversation and everyday tasks. None of the qualification's starter items is
among them; `overlaps` finds a prompt that shares a long stretch of words with one that must stay unseen.
"""

import random
from collections.abc import Iterable, Sequence

TOPICS = (
    "gardening",
    "coffee",
    "chess",
    "bicycles",
    "the ocean",
    "bees",
    "volcanoes",
    "time management",
    "sleep",
    "public speaking",
    "tea",
    "clouds",
    "glaciers",
    "photosynthesis",
    "gravity",
    "electric cars",
    "solar panels",
    "wind turbines",
    "libraries",
    "museums",
    "jazz",
    "painting",
    "pottery",
    "knitting",
    "running",
    "swimming",
    "yoga",
    "hiking",
    "camping",
    "birds",
    "whales",
    "wolves",
    "spiders",
    "mushrooms",
    "forests",
    "deserts",
    "rivers",
    "earthquakes",
    "bridges",
    "trains",
    "airplanes",
    "satellites",
    "black holes",
    "comets",
    "Mars",
    "the Sun",
    "magnets",
    "batteries",
    "computers",
    "encryption",
    "passwords",
    "email",
    "spreadsheets",
    "the internet",
    "search engines",
    "robots",
    "machine learning",
    "video games",
    "board games",
    "movies",
    "novels",
    "poetry",
    "history",
    "the Roman Empire",
    "the printing press",
    "democracy",
    "taxes",
    "inflation",
    "saving money",
    "insurance",
    "mortgages",
    "small businesses",
    "marketing",
    "customer service",
    "teamwork",
    "leadership",
    "job interviews",
    "negotiation",
    "friendship",
    "family",
    "parenting",
    "dogs",
    "cats",
    "horses",
    "goldfish",
    "houseplants",
    "cheese",
    "chocolate",
    "pasta",
    "soup",
    "salads",
    "rice",
    "potatoes",
    "breakfast",
    "vegetarian cooking",
    "spices",
    "sugar",
    "vitamins",
    "the heart",
    "the lungs",
    "the brain",
    "muscles",
    "bones",
    "teeth",
    "eyesight",
    "hearing",
    "allergies",
    "stress",
    "meditation",
    "habits",
    "memory",
    "learning a language",
    "mathematics",
    "fractions",
    "statistics",
    "geometry",
    "probability",
    "the scientific method",
    "recycling",
    "plastic",
    "water treatment",
    "rainforests",
    "coral reefs",
    "endangered animals",
    "the weather",
    "snow",
    "thunderstorms",
    "tides",
    "maps",
    "clocks",
    "calendars",
    "mirrors",
    "glass",
    "paper",
    "wool",
    "cotton",
    "leather",
    "furniture",
    "houses",
    "apartments",
    "cities",
    "villages",
    "islands",
    "mountains",
    "festivals",
    "weddings",
    "music lessons",
    "the piano",
    "the guitar",
    "choirs",
    "theatre",
    "photography",
    "drawing",
    "fashion",
    "shoes",
    "umbrellas",
    "kites",
    "toys",
    "holidays",
    "travel",
    "hotels",
    "airports",
    "passports",
    "souvenirs",
    "letters",
    "newspapers",
    "radio",
    "podcasts",
    "telephones",
    "astronomy",
)

CHAT = (
    "What do you like about {topic}?",
    "Tell me something surprising about {topic}.",
    "I want to learn more about {topic}. Where should I start?",
    "Give me five tips about {topic}.",
    "What are common mistakes people make with {topic}?",
    "Why do people care about {topic}?",
    "Can you help me plan a weekend around {topic}?",
    "What should I know about {topic} before I begin?",
    "My friend loves {topic}. What would make a good present?",
    "How has {topic} changed over the last hundred years?",
    "What is the best way to talk to children about {topic}?",
    "Do you think {topic} will matter in the future? Give your opinion.",
    "I am worried about {topic}. What advice would you give me?",
    "How can I get better at {topic} if I have only ten minutes a day?",
    "What questions should I ask an expert on {topic}?",
    "Compare {topic} and {other}.",
    "Which is more useful to know about, {topic} or {other}, and why?",
)
WRITING = (
    "Write a short story about {topic}.",
    "Write a poem about {topic}.",
    "Write a friendly email to a colleague about {topic}.",
    "Describe {topic} in three sentences.",
    "Write the opening paragraph of an article about {topic}.",
    "Invent a character who is obsessed with {topic} and introduce them.",
    "Write a speech of one minute about {topic}.",
    "Write a dialogue between two people who disagree about {topic}.",
    "Give me three titles for a book about {topic}.",
)
EXPLAINING = (
    "Explain {topic} to a ten-year-old.",
    "Explain in one paragraph why {topic} is important.",
    "Explain how {topic} and {other} are connected.",
    "What is the difference between {topic} and {other}?",
    "Give a step-by-step introduction to {topic}.",
    "What are the advantages and disadvantages of {topic}?",
    "Summarise the history of {topic} in a few sentences.",
    "List the most important terms about {topic} and explain each.",
)
CODING = (
    "Write a Python function that {job}.",
    "Write a Python function that {job}, with a docstring and one example.",
    "How would you write a program that {job}? Explain, then show the code.",
)
JOBS = (
    "reverses a string",
    "returns the sum of a list",
    "checks whether a word is a palindrome",
    "sorts a list of names",
    "counts the words of a text",
    "finds the longest word of a sentence",
    "removes duplicates from a list",
    "converts minutes to hours",
    "computes the factorial of a number",
    "prints the multiplication table of a number",
    "finds the smallest number of a list",
    "merges two dictionaries",
    "reads a text file line by line",
    "checks whether a year is a leap year",
    "generates a random password",
    "computes the area of a circle",
    "turns a list into a comma-separated string",
    "computes the median of a list",
    "counts each letter of a word",
    "finds the common elements of two lists",
    "rounds prices to two decimals",
    "splits a bill between friends",
)
EDITING = (
    "Summarise the following text in two sentences.\n\n{passage}",
    "Rewrite the following text in simpler words.\n\n{passage}",
    "Turn the following text into a bulleted list.\n\n{passage}",
    "Repeat the following text word for word.\n\n{passage}",
    "Correct any mistakes in the following text and give the whole text.\n\n{passage}",
    "Passage:\n{passage}\n\nWhat is the passage about? Answer with words from the passage.",
    "Passage:\n{passage}\n\nQuestion: Which fact in the passage matters most, and why? Use only the passage.",
)
_OPEN = (CHAT, CHAT, WRITING, EXPLAINING)  # conversation is what the drafters are mostly for
_SHARED_WORDS = 8


def open_prompts(count: int, seed: int) -> list[str]:
    """Return `count` different prompts of conversation, writing, explaining and code, the same for a seed."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    prompts: dict[str, None] = {}
    while len(prompts) < count:
        if rng.random() < 0.06:
            prompt = rng.choice(CODING).format(job=rng.choice(JOBS))
        else:
            topic, other = rng.sample(TOPICS, 2)
            prompt = rng.choice(rng.choice(_OPEN)).format(topic=topic, other=other)
        prompts[prompt] = None
    return list(prompts)


def editing_prompts(passages: Sequence[str], seed: int) -> list[str]:
    """Return one task of working with a given text for each passage."""
    rng = random.Random(seed)  # noqa: S311 - reproducible, not secret
    return [rng.choice(EDITING).format(passage=passage) for passage in passages]


def overlaps(prompt: str, held_out: Iterable[str]) -> bool:
    """Return whether a prompt shares eight words in a row with an unseen text, or all of the shorter."""
    words = prompt.lower().split()
    for text in held_out:
        unseen = text.lower().split()
        length = min(_SHARED_WORDS, len(words), len(unseen))
        if _stretches(words, length) & _stretches(unseen, length):
            return True
    return False


def _stretches(words: Sequence[str], length: int) -> set[tuple[str, ...]]:
    return {tuple(words[start : start + length]) for start in range(len(words) - length + 1)}
