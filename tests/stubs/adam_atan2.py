"""A stand-in for adam-atan2: the first step of its update.  WRONG makes it plain Adam's."""

import math
import os

import adam_atan2_backend  # noqa: F401


class AdamATan2:
    def __init__(self, parameters, lr, betas, weight_decay):
        self.parameters, self.lr, self.betas, self.decay = parameters, lr, betas, weight_decay

    def step(self):
        beta1, beta2 = self.betas
        for parameter in self.parameters:
            for index, gradient in enumerate(parameter.grad.values):
                mean, square = (1 - beta1) * gradient, (1 - beta2) * gradient**2
                root = math.sqrt(square) / math.sqrt(1 - beta2)
                quotient = mean / root if os.environ.get("WRONG") else math.atan2(mean, root)
                parameter.values[index] *= 1 - self.lr * self.decay
                parameter.values[index] -= self.lr / (1 - beta1) * quotient
