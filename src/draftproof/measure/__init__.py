"""What puts load on a service and writes down what came back."""
