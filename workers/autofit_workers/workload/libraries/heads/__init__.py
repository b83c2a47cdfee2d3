"""Which class of transformers a configuration is of, what that class is trained for, and its batches.

head        the class that a configuration and a user name, and what is said where there is none
catalogue   the tasks, a line each, with the table of transformers that has their classes
task        what a task, and a class with a configuration, are
sizes       how long texts are, how large images, from the configuration
texts images videos sounds series documents      batches of one kind of samples, with the labels of a task
vision_language speech_language                  texts with images or sounds in them
features    how many tokens of a text stand for an image or a sound: as many as the class makes of it

Classes are found in the tables by which transformers chooses one for a configuration
(`MODEL_FOR_…_MAPPING`). A batch is what the class takes as its main input, and the labels of the task:

    main input        made from the configuration
    input_ids         tokens, in the layout of the knob `batch_layout`
    pixel_values      images of the configuration's size, or frames of a video
    input_features    frames of a spectrogram
    input_values      samples of a sound, or a spectrogram as an image
    past_values       values of a time series
"""
