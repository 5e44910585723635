"""The capacity knee of each arm: the highest load at which its objectives still hold (docs/knee.md)."""
