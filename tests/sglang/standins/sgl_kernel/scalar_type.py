"""Names of quantised number types; SGLang looks them up while it is imported."""


class _Names:
    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


scalar_types = _Names()
ScalarType = str
