"""Studies as other tools keep them: TensorBoard's event files, MLflow's runs. Optional extras, imported on demand."""
