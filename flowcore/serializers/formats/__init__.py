"""Value formats: what does a record's value look like in bytes?"""
