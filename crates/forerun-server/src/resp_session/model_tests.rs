//! Sequences of commands, compared with a plain model.
