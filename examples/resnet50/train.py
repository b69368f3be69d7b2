"""Train a ResNet-50 on a folder of images, with fp16 autocast and channels-last memory.

    python train.py --epochs 90 --batch-size 128

Without --data a small folder of JPEG images is made on first use (10 classes).
"""

import argparse
import time
from pathlib import Path

import numpy as np
import torch
import torchvision
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder


def make_images(folder, classes=10, per_class=64, size=(500, 375)):
    """Smooth random pictures: they compress like photographs do."""
    if not folder.exists():
        rng = np.random.default_rng(0)
        for label in range(classes):
            target = folder / f"class{label}"
            target.mkdir(parents=True)
            for number in range(per_class):
                coarse = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
                picture = np.asarray(Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC), dtype=np.int16)
                noisy = np.clip(picture + rng.normal(0, 8, picture.shape), 0, 255).astype(np.uint8)
                Image.fromarray(noisy).save(target / f"{number}.jpg", quality=90)
    return folder


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--workers", type=int, default=8)
    args = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = args.data or make_images(Path(__file__).parent / "data" / "images")
    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(224),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    dataset = ImageFolder(folder, augment)
    loader = DataLoader(
        dataset, args.batch_size, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    model = torchvision.models.resnet50(num_classes=len(dataset.classes))
    model = model.to(device, memory_format=torch.channels_last)
    criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)
    scaler = torch.amp.GradScaler("cuda")

    for epoch in range(args.epochs):
        model.train()
        start, correct, seen = time.time(), 0, 0
        for images, labels in loader:
            images = images.to(device, memory_format=torch.channels_last, non_blocking=True)
            labels = labels.to(device, non_blocking=True)
            with torch.autocast("cuda", dtype=torch.float16):
                output = model(images)
                loss = criterion(output, labels)
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            correct += (output.argmax(1) == labels).sum().item()
            seen += len(labels)
        schedule.step()
        print(f"epoch {epoch}: accuracy {correct / seen:.3f}, {seen / (time.time() - start):.0f} images/s")
        torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    main()
