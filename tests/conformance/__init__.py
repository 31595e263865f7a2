"""Whether a model file trains as by `keras.Model.fit`: a row for each public class of Keras, and further programs."""
