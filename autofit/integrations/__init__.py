"""Callbacks and functions for trainers of other libraries, a module each, which alone imports its library.

transformers   AutofitCallback (observes peaks), fit (batch size, with accumulation, before training)
lightning      AutofitBatchSizeFinder, scale_batch_size
accelerate     find_executable_batch_size
composer       AutofitMicrobatches (size of the parts into which Composer splits a batch)
frameworks     libraries imported with a sentence where one is missing
finding        batch size of a trainer's workload: predicted, then tried at most twice
"""
