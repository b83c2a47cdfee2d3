"""Heads of transformers' models: the model class for a configuration, its task and its batches.

head        finds the class for a configuration and a user's task, with errors if there is none
catalogue   lists the tasks, each with the mapping of transformers that has its classes
task        `Task`; `Head`, a class with its task and configuration
sizes       lengths of texts and sides of images, from the configuration
texts images videos sounds series documents      batches of one kind of samples, with the labels of a task
vision_language speech_language                  texts with images or sounds in them
features    counts the tokens that stand for an image or a sound in a text, as the class computes them

Classes are found in the mappings by which transformers chooses one for a configuration
(`MODEL_FOR_…_MAPPING`). A batch has the class's main input, and the labels of the task:

    main input        made from the configuration
    input_ids         tokens, in the layout of the knob `batch_layout`
    pixel_values      images of the configuration's size, or frames of a video
    input_features    frames of a spectrogram
    input_values      samples of a sound, or a spectrogram as an image
    past_values       values of a time series
"""
