"""placeholder"""
class SyntheticNet: pass
