"""Floor 4. What is shown: console tables, figures and their style, the paper's tables. The HTML page: report/."""
