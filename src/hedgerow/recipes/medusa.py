"""medusa: heads that guess the next tokens side by side, in a sparse static tree.

Title:     Medusa: Simple LLM Inference Acceleration Framework with Multiple Decoding Heads (2401.10774)
Idea:      heads on the last hidden state guess tokens 2, 3, …; a tree grown greedily from measured rank accuracies
           holds their best combinations
Symbols:   their a_k^(i) are the measured accuracies of the 7B heads; 63 nodes, depth 5
Differs:   grown from the published accuracies by a heap; the shipped list differs in its last nodes
Compared:  no
"""

from hedgerow.core.recipe import DraftSource, Recipe
from hedgerow.policy.fixed import Fixed
from hedgerow.topology.sparse import medusa_accuracy, medusa_tree
from hedgerow.verify.match import Match

RECIPE = Recipe(
    name="medusa", version=1, title="Medusa", paper="medusa2024",
    sources=(DraftSource("medusa", "heads", None, "Medusa heads, with --drafter"),),
    policy=Fixed(medusa_tree(medusa_accuracy("7b"))), rule=Match(), nodes=63,
    differs="grown from the published accuracies by a heap; the shipped list differs in its last nodes",
)
