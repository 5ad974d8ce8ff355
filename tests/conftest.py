"""Being here puts tests/ on the import path: `import models` and `import reference` work below."""
