"""ngram: prompt lookup with all its matches, as a tree.

Title:     Prompt lookup decoding (a software repository)
Idea:      several places where the last tokens stood before disagree on what comes next: a tree holds all of them
Symbols:   n-grams of at most 3 tokens, 16 newest places each
Differs:   a tree of all matches instead of a chain of the first
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.core.tree import Selection
from hedgerow.draft.ngram import NgramDrafter
from hedgerow.policy.bestfirst import BestFirst
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="ngram", version=1, title="Prompt lookup decoding", paper="pld2023",
    sources=(DraftSource("ngram", "retrieval", lambda built: NgramDrafter()),),
    policy=BestFirst(8, 4, selection=Selection.RETRIEVED), rule=Match(), nodes=15,
    differs="a tree of all matches instead of a chain of the first",
)
