"""GGUF files of llama.cpp: header, configuration, tokenizer, and tensors under Hugging Face names."""

from hybridlm.gguf_files.companions import companions
from hybridlm.gguf_files.config import read_architecture
from hybridlm.gguf_files.header import BLOCK_TYPES, GgufHeader, read_header
from hybridlm.gguf_files.tensors import NamedTensor, named_tensors
