"""Training loops for tests of leaks: some keep more memory with each step by mistake, others do not.

Each loop follows a common head; the line that keeps more memory has the comment `# grows`. The
head's model takes batches of 64 × 256 to 64 × 128 by a hidden layer of 512.
"""

HEAD = """
import collections, copy
import torch
from torch import nn
from torch.nn.functional import mse_loss

torch.manual_seed(0)
hidden, head = nn.Linear(256, 512).cuda(), nn.Linear(512, 128).cuda()
model = nn.Sequential(hidden, nn.ReLU(), head)
optimizer = torch.optim.Adam(model.parameters())
data = torch.utils.data.TensorDataset(torch.zeros(64 * 500, 256), torch.zeros(64 * 500, 128))
loader = torch.utils.data.DataLoader(data, batch_size=64)

def train(loss):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""
BATCH, HIDDEN, WIDTH, OUTPUT = 64, 512, 256, 128
_FLOAT = 4

# By name: the loop, and the bytes that each of its steps keeps.
LEAKS = {
    "outputs appended": (
        """
outputs = []
for x, y in loader:
    output = model(x.cuda())
    train(mse_loss(output, y.cuda()))
    outputs.append(output.detach())  # grows
""",
        BATCH * OUTPUT * _FLOAT,
    ),
    "losses with their graphs, in a dictionary of lists": (
        """
history = {"loss": [], "step": []}
for step, (x, y) in enumerate(loader):
    state = torch.relu(hidden(x.cuda()))
    loss = (head(state) - y.cuda()).square().mean()
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
    history["loss"].append(loss)  # grows
    history["step"].append(step)
""",
        BATCH * (WIDTH + HIDDEN + OUTPUT) * _FLOAT,  # inputs of both layers, and what is squared
    ),
    "losses summed with graphs that are not freed": (
        """
total = 0
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    loss = mse_loss(model(x), y)
    total = total + loss + (head.weight * 2).square().mean()  # grows
    train(loss)
""",
        HIDDEN * OUTPUT * _FLOAT,  # what `square` saves
    ),
    "a cache by the number of the step": (
        """
cache = {}
for step, (x, y) in enumerate(loader):
    x, y = x.cuda(), y.cuda()
    train(mse_loss(model(x), y))
    cache[step] = x.square()  # grows
""",
        BATCH * WIDTH * _FLOAT,
    ),
    "a hook that appends": (
        """
seen = []
hidden.register_forward_hook(lambda module, inputs, output: seen.append(output.detach() * 1))  # grows
for x, y in loader:
    train(mse_loss(model(x.cuda()), y.cuda()))
""",
        BATCH * HIDDEN * _FLOAT,
    ),
    "a tensor that each step is concatenated to": (
        """
history = torch.zeros(0, 128, device="cuda")
for x, y in loader:
    output = model(x.cuda())
    train(mse_loss(output, y.cuda()))
    history = torch.cat([history, output.detach()])  # grows
""",
        BATCH * OUTPUT * _FLOAT,
    ),
    "an attribute of a model": (
        """
class Remembering(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.states = model, []
    def forward(self, x):
        self.states.append(x.sum(1, keepdim=True).expand(-1, 256) + 1)  # grows
        return self.inner(x)
remembering = Remembering()
for x, y in loader:
    train(mse_loss(remembering(x.cuda()), y.cuda()))
""",
        BATCH * WIDTH * _FLOAT,
    ),
    "snapshots of the weights, each second step": (
        """
snapshots = []
for step, (x, y) in enumerate(loader):
    train(mse_loss(model(x.cuda()), y.cuda()))
    if step % 2 == 0:
        snapshots.append(head.weight.detach().clone())  # grows
""",
        HIDDEN * OUTPUT * _FLOAT // 2,
    ),
    "a recurrent state that is not detached": (
        """
state = torch.zeros(64, 512, device="cuda")
for x, y in loader:
    state = torch.tanh(state + hidden(x.cuda()))  # grows
    loss = mse_loss(head(state), y.cuda())
    optimizer.zero_grad()
    loss.backward(retain_graph=True)
    optimizer.step()
""",
        BATCH * (HIDDEN + WIDTH) * _FLOAT,  # what `tanh` and the layer save
    ),
    "batches that are kept on the card": (
        """
class Kept:
    def __init__(self):
        self.batches = []
    def take(self, x):
        x = x.cuda()
        self.batches.append(x)  # grows
        return x
kept = Kept()
for epoch in range(3):
    for x, y in loader:
        train(mse_loss(model(kept.take(x)), y.cuda()))
""",
        BATCH * WIDTH * _FLOAT,
    ),
}

CLEAN = {
    "states, gradients and an average of the weights": """
average = None
for x, y in loader:
    loss = mse_loss(model(x.cuda()), y.cuda())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    average = average or copy.deepcopy(model)
    with torch.no_grad():
        for mean, weight in zip(average.parameters(), model.parameters()):
            mean.lerp_(weight, 0.01)
""",
    "copies of the best weights and of the optimizer's states": """
best = None
for x, y in loader:
    train(mse_loss(model(x.cuda()), y.cuda()))
    best = copy.deepcopy(model.state_dict())
    states = copy.deepcopy(optimizer.state_dict())
    half = copy.deepcopy(model).half()
""",
    "a buffer of fixed size that fills": """
buffer = collections.deque(maxlen=20)
for x, y in loader:
    output = model(x.cuda())
    train(mse_loss(output, y.cuda()))
    buffer.append(output.detach())
""",
    "a list that is cut to its last entries": """
last = []
for x, y in loader:
    output = model(x.cuda())
    train(mse_loss(output, y.cuda()))
    last = [*last, output.detach()][-10:]
""",
    "a cache by what repeats": """
cache = {}
for step, (x, y) in enumerate(loader):
    x = x.cuda()
    if step % 6 not in cache:
        cache[step % 6] = torch.ones(64, 256, device="cuda")
    train(mse_loss(model(x + cache[step % 6]), y.cuda()))
""",
    "lengths that differ": """
for step, (x, y) in enumerate(loader):
    rows = 8 + step * 37 % 56
    output = model(x[:rows].cuda())
    train(mse_loss(output, y[:rows].cuda()))
""",
    "metrics on the CPU": """
losses, outputs = [], []
for x, y in loader:
    output = model(x.cuda())
    loss = mse_loss(output, y.cuda())
    train(loss)
    losses.append(loss.item())
    outputs.append(output.detach().cpu())
""",
    "losses without graphs": """
losses = []
for x, y in loader:
    loss = (model(x.cuda()) - y.cuda()).square().mean()
    train(loss)
    losses.append(loss.detach())
""",
    "training and evaluation by turns": """
for x, y in loader:
    x, y = x.cuda(), y.cuda()
    model.train()
    train(mse_loss(model(x), y))
    model.eval()
    outputs = []
    with torch.no_grad():
        for part in x.split(16):
            outputs.append(model(part))
    score = torch.cat(outputs).mean()
""",
    "a replay buffer that was made before": """
buffer, position = torch.zeros(1000, 64, 256, device="cuda"), 0
for x, y in loader:
    buffer[position % 1000] = x.cuda()
    position += 1
    train(mse_loss(model(buffer[position % 7]), y.cuda()))
""",
    "accumulated gradients and two steps that are remembered": """
before = earlier = None
for step, (x, y) in enumerate(loader):
    output = model(x.cuda())
    mse_loss(output, y.cuda()).backward()
    before, earlier = output.detach(), before
    if step % 4 == 3:
        optimizer.step()
        optimizer.zero_grad()
""",
}
