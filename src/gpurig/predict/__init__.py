"""StepTrace × Recipe × Gpu → Prediction: memory, step time, communication, input pipeline. Pure."""
