"""What is known of the values of tensors that have none, and what is made up where a program asks for them.

known.py follows the values that came from the CPU, as far as effort.py allows, made_up.py has numbers that
say so, decisions.py takes the branches that hang on them, sized.py sizes what depends on them, reads.py
answers the program.
"""
