"""What every program would load and look up for itself: imported by the server from which they are forked."""

import transformers.models.llama.modeling_llama
import transformers.tokenization_utils_tokenizers  # noqa: F401

import dipaco_swarm.cli.bootstrap
import dipaco_swarm.cli.peer
import dipaco_swarm.cli.swarm
import dipaco_swarm.operator.program
import dipaco_swarm.peer.program
import dipaco_swarm.swarm.networked  # noqa: F401
from dipaco_swarm.training.sources.python import files_in_order

files_in_order()
